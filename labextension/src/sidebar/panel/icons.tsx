/** Icons; each stands beside a word with the same meaning. */

import { LabIcon } from '@jupyterlab/ui-components';
import React from 'react';
import type { Look } from '../words';

/** Four ranks that belong together. */
export const nbdistIcon = new LabIcon({
  name: 'nbdist:ranks',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <path d="M7 6h10v1.6H7zM7 16.4h10V18H7zM5.2 8h1.6v8H5.2zM17.2 8h1.6v8h-1.6z"/>
    <rect x="2.5" y="3.5" width="7" height="7" rx="1.6"/>
    <rect x="14.5" y="3.5" width="7" height="7" rx="1.6"/>
    <rect x="2.5" y="13.5" width="7" height="7" rx="1.6"/>
    <rect x="14.5" y="13.5" width="7" height="7" rx="1.6"/>
  </g>
</svg>`
});

const stroke = {
  fill: 'none',
  stroke: 'currentColor',
  strokeWidth: 1.8,
  strokeLinecap: 'round',
  strokeLinejoin: 'round'
} as const;

const SHAPES: Record<Look, React.ReactNode> = {
  idle: <circle cx="8" cy="8" r="4.2" {...stroke} />,
  busy: <path d="M5 3.2v9.6L13 8z" fill="currentColor" />,
  wait: (
    <path
      d="M4.5 2.5h7M4.5 13.5h7M5 2.5c0 3 6 8 6 11M11 2.5c0 3-6 8-6 11"
      {...stroke}
    />
  ),
  good: <path d="M3.2 8.4l3.2 3.2 6.4-7" {...stroke} />,
  info: (
    <path
      d="M8 14.2A6.2 6.2 0 1 1 8 1.8a6.2 6.2 0 0 1 0 12.4zM8 7.2v4M8 4.7v.1"
      {...stroke}
    />
  ),
  warn: <path d="M8 2.4L14 13H2zM8 6.4v3.2M8 11.4v.1" {...stroke} />,
  bad: <path d="M4 4l8 8M12 4l-8 8" {...stroke} />
};

/** The icon of a look. */
export function LookIcon({ look }: { look: Look }): React.JSX.Element {
  return (
    <svg
      className={`jp-NbdistLook jp-mod-${look}`}
      viewBox="0 0 16 16"
      width="12"
      height="12"
      aria-hidden="true"
    >
      {SHAPES[look]}
    </svg>
  );
}

/** Nested calls. */
export const stacksIcon = new LabIcon({
  name: 'nbdist:stacks',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3 jp-icon-selectable" fill="#616161" d="M3 4h18v2H3zm3 5h15v2H6zm3 5h12v2H9zm3 5h9v2h-9z"/>
</svg>`
});

/** Two curves on axes. */
export const curvesIcon = new LabIcon({
  name: 'nbdist:curves',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <path d="M3 3h2v16h16v2H3z"/>
    <path d="M8 17 6.5 15.7 11 10l4 3 5-7 1.6 1.2L15.5 16l-4-3z"/>
  </g>
</svg>`
});
