/**
 * Write the version of the Python package, which is the only one that is maintained, into the built
 * extension; and remove the copy of package.json that jupyter-builder keeps for its next run.
 */
import { readFileSync, rmSync, writeFileSync } from 'node:fs';

const here = name => new URL(`../${name}`, import.meta.url).pathname;
const source = readFileSync(here('../nbdist/version.py'), 'utf8');
const [, version] = source.match(/^__version__ = "(.+)"$/m);

const path = here('../nbdist/labextension/package.json');
const { name, ...rest } = JSON.parse(readFileSync(path, 'utf8'));
writeFileSync(path, JSON.stringify({ name, version, ...rest }, null, 2));
rmSync(here(`../nbdist/labextension/schemas/${name}/package.json.orig`));
