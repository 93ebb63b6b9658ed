/** The text of a rank's log, in lines. */

// eslint-disable-next-line no-control-regex -- colours of terminals are control characters
const CONTROLS = /\u001b\[[0-9;?]*[A-Za-z]/g;
// eslint-disable-next-line no-control-regex -- only the codes for colours
const COLOURS = /\u001b\[[0-9;]*m/g;
// eslint-disable-next-line no-control-regex -- the code that resets all colours
const PLAIN = /^\u001b\[0*m$/;
/** If there are more lines, the earliest are forgotten. */
const MOST_LINES = 100_000;

export class LogText {
  /** The lines without terminal codes; the last line may still grow. */
  lines: string[] = [''];
  /** The same lines with terminal codes; each begins with the colours that are on there. */
  sources: string[] = [''];
  /** How many lines were forgotten. */
  forgotten = 0;

  add(text: string): void {
    const [first, ...more] = (this._open + text).split('\n');
    this._set(this.lines.length - 1, first);
    let line = first;
    for (const next of more) {
      this._colour = after(this._colour, line);
      this._set(this.lines.length, next);
      line = next;
    }
    // Only the text after the last carriage return is seen, so the text before it is dropped.
    const last = line.lastIndexOf('\r', line.length - 2);
    if (last > 0) {
      this._colour = after(this._colour, line.slice(0, last));
      line = line.slice(last);
    }
    this._open = line;
    const over = this.lines.length - MOST_LINES;
    if (over > MOST_LINES / 10) {
      this.lines = this.lines.slice(over);
      this.sources = this.sources.slice(over);
      this.forgotten += over;
    }
  }

  clear(): void {
    this.lines = [''];
    this.sources = [''];
    this.forgotten = 0;
    this._open = '';
    this._colour = '';
  }

  /** Whether nothing has been written. */
  get empty(): boolean {
    return this.lines.length === 1 && !this.lines[0] && !this.forgotten;
  }

  /** The indices of the lines that contain these words, in upper or lower case. */
  find(words: string): number[] {
    const wanted = words.toLowerCase();
    const found: number[] = [];
    if (wanted) {
      this.lines.forEach((line, i) => {
        if (line.toLowerCase().includes(wanted)) {
          found.push(i);
        }
      });
    }
    return found;
  }

  private _set(number: number, line: string): void {
    const source = shown(this._colour, line);
    this.sources[number] = source;
    this.lines[number] = source.replace(CONTROLS, '');
  }

  private _open = ''; // the last line as the rank wrote it
  private _colour = ''; // the colours that are on where the last line begins
}

/** A line as a terminal shows it: text after a carriage return replaces the text before it. */
function shown(colour: string, line: string): string {
  const whole = line.replace(/\r+$/, '');
  const back = whole.lastIndexOf('\r');
  return back < 0
    ? colour + whole
    : after(colour, whole.slice(0, back)) + whole.slice(back + 1);
}

/** The colours that are on after a text, if `colour` was on before it. */
function after(colour: string, text: string): string {
  if (!text.includes('\u001b')) {
    return colour;
  }
  let now = colour;
  for (const [code] of text.matchAll(COLOURS)) {
    // A code that is on already is not noted twice, so the notes stay short.
    now = PLAIN.test(code) ? '' : now.replace(code, '') + code;
  }
  return now;
}
