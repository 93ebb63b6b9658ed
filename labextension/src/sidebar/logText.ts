/** What a rank has written, in lines. */

// eslint-disable-next-line no-control-regex -- colours of terminals are control characters
const COLOURS = /\u001b\[[0-9;?]*[A-Za-z]/g;
/** More are forgotten, the earliest first. */
const MOST_LINES = 100_000;

export class LogText {
  /** Whole lines; the last one may still grow. */
  lines: string[] = [''];
  /** Lines that were forgotten. */
  forgotten = 0;

  add(text: string): void {
    const [first, ...more] = (this._open + text).split('\n');
    this.lines[this.lines.length - 1] = shown(first);
    for (const line of more) {
      this.lines.push(shown(line));
    }
    this._open = more.length ? more[more.length - 1] : first;
    // Only what stands after the last return is ever seen, so nothing before it needs be kept.
    const last = this._open.lastIndexOf('\r', this._open.length - 2);
    this._open = last > 0 ? this._open.slice(last) : this._open;
    const over = this.lines.length - MOST_LINES;
    if (over > MOST_LINES / 10) {
      this.lines = this.lines.slice(over);
      this.forgotten += over;
    }
  }

  clear(): void {
    this.lines = [''];
    this.forgotten = 0;
    this._open = '';
  }

  /** Numbers of the lines that have these words, whatever their case. */
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

  private _open = ''; // the last line as it came
}

/** A line as a terminal shows it: what comes after a return stands over what was before. */
function shown(line: string): string {
  const plain = line.replace(COLOURS, '').replace(/\r+$/, '');
  const back = plain.lastIndexOf('\r');
  return back < 0 ? plain : plain.slice(back + 1);
}
