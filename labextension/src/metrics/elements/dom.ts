/** Makes and changes elements. */

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

/** Set a text only if it differs, which does not disturb selections and screen readers. */
export function setText(node: Element, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Set an attribute only if it differs. */
export function setAttribute(node: Element, name: string, value: string): void {
  if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

/** Bring the number of children to `length`, adding and removing only at the end. */
export function fit(parent: Element, length: number, child: () => Node): void {
  while (parent.childNodes.length > length) {
    parent.lastChild!.remove();
  }
  while (parent.childNodes.length < length) {
    parent.append(child());
  }
}
