"""Make screenshots small: reduce each to its most important colours, and compress it well."""

from __future__ import annotations

import sys

from PIL import Image

COLOURS = 256


def main() -> None:
    """Rewrite the files named on the command line."""
    for path in sys.argv[1:]:
        with Image.open(path) as image:
            small = image.convert("RGB").quantize(
                COLOURS, Image.Quantize.MEDIANCUT, kmeans=3, dither=Image.Dither.NONE
            )
        small.save(path, optimize=True)


if __name__ == "__main__":
    main()
