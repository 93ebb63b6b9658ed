/** Reads the page's colours for the canvas, to which style sheets do not apply. */

/** How many colours curves have; see style.css. */
export const COLOURS = 8;

/**
 * Colours by name, as the style sheet defines them at present.
 *
 * The colour of the page's text shows whether the page is dark, in every front end.
 */
export class Theme {
  /**
   * @param root An element for which the style sheet's variables are defined.
   * @param changed Called when the colours may have changed.
   */
  constructor(root: HTMLElement, changed: () => void) {
    this._root = root;
    this._probe = root.appendChild(document.createElement('span'));
    this._probe.hidden = true;
    const look = (): void => {
      this.read();
      changed();
    };
    // A front end may announce a theme long before the theme's style sheet is loaded.
    const loaded = (event: Event): void => {
      if (event.target instanceof HTMLLinkElement) {
        look();
      }
    };
    this._observer = new MutationObserver(look);
    // There are no colours before the element is part of the page.
    this._taken = new ResizeObserver(() => {
      this._taken.disconnect();
      look();
    });
    this._taken.observe(root);
    for (const node of [document.documentElement, document.body]) {
      this._observer.observe(node, { attributes: true });
    }
    this._scheme.addEventListener('change', look);
    document.addEventListener('load', loaded, true);
    this._stop = () => {
      document.removeEventListener('load', loaded, true);
      this._scheme.removeEventListener('change', look);
    };
    this.read();
  }

  /** Forget the colours known so far. */
  read(): void {
    this._known.clear();
    this._root.classList.toggle('nbdist-dark', isLight(this.of('text')));
    this._known.clear();
  }

  /** The colour of a variable `--nbdist-NAME`, as `rgb(...)`; faded if `alpha` is less than 1. */
  of(name: string, alpha = 1): string {
    let found = this._known.get(name);
    if (found === undefined) {
      this._probe.style.color = `var(--nbdist-${name})`;
      found = getComputedStyle(this._probe).color;
      this._known.set(name, found);
    }
    return alpha === 1 ? found : faded(found, alpha);
  }

  /** The font of small text, for a canvas. */
  get font(): string {
    return `11px ${getComputedStyle(this._root).fontFamily}`;
  }

  dispose(): void {
    this._taken.disconnect();
    this._observer.disconnect();
    this._stop();
    this._probe.remove();
  }

  private readonly _root: HTMLElement;
  private readonly _probe: HTMLElement;
  private readonly _taken: ResizeObserver;
  private readonly _observer: MutationObserver;
  private readonly _scheme = window.matchMedia('(prefers-color-scheme: dark)');
  private readonly _stop: () => void;
  private readonly _known = new Map<string, string>();
}

function parts(colour: string): number[] {
  return (colour.match(/[\d.]+/g) ?? []).map(Number);
}

function isLight(colour: string): boolean {
  const [red = 0, green = 0, blue = 0] = parts(colour);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 128;
}

function faded(colour: string, alpha: number): string {
  const [red = 0, green = 0, blue = 0, own = 1] = parts(colour);
  return `rgba(${red}, ${green}, ${blue}, ${own * alpha})`;
}
