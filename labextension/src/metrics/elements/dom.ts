/** The little that is needed to make and change elements. */

type Tags = HTMLElementTagNameMap;

/** Make an element; attributes that are false are left out. */
export function make<K extends keyof Tags>(
  tag: K,
  attributes: Record<string, string | false> = {},
  ...children: (Node | string)[]
): Tags[K] {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false) {
      node.setAttribute(name, value);
    }
  }
  node.append(...children);
  return node;
}

/** Change a text only if it is another one, so that selections and screen readers are left alone. */
export function setText(node: Element, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** The same for an attribute. */
export function setAttribute(node: Element, name: string, value: string): void {
  if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

/** Bring the children of a list to a length, making and removing only at its end. */
export function fit(parent: Element, length: number, child: () => Node): void {
  while (parent.childNodes.length > length) {
    parent.lastChild!.remove();
  }
  while (parent.childNodes.length < length) {
    parent.append(child());
  }
}
