/** The icons of a panel's buttons. */

const SVG = 'http://www.w3.org/2000/svg';

function icon(shape: string): SVGElement {
  const node = document.createElementNS(SVG, 'svg');
  node.setAttribute('viewBox', '0 0 16 16');
  node.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', shape);
  node.append(path);
  return node;
}

export function pinIcon(): SVGElement {
  return icon(
    'M10.5 1.5 14.5 5.5 12.8 6.3 10.4 8.7 10.2 12.2 8.9 13.5 5.9 10.5 2.4 14 2 13.6 5.5 10.1 2.5 7.1 3.8 5.8 7.3 5.6 9.7 3.2z'
  );
}

export function saveIcon(): SVGElement {
  return icon('M8 2v8M4.5 7 8 10.5 11.5 7M2.5 10.5v3h11v-3');
}
