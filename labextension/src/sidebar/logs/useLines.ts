/** A React hook that gives the lines of a log. */

import { useEffect, useState } from 'react';
import type { Follower } from './follower';

/** The lines of a log with their terminal codes; redrawn at most once a frame. */
export function useLines(log: Follower): string[] {
  const [, draw] = useState(0);
  useEffect(() => {
    let frame = 0;
    const onChanged = (): void => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        draw(count => count + 1);
      });
    };
    log.changed.connect(onChanged);
    onChanged();
    return () => {
      cancelAnimationFrame(frame);
      log.changed.disconnect(onChanged);
    };
  }, [log]);
  return log.text.sources;
}
