/**
 * Bundle the chart of the live metrics for the Python package: one ES module and one style sheet.
 * Both travel to the page with the widget's state, so the page fetches nothing.
 */
import { readFileSync } from 'node:fs';
import { build } from 'esbuild';

const here = name => new URL(`../${name}`, import.meta.url).pathname;
const licence = name =>
  readFileSync(here(`node_modules/${name}/LICENSE`), 'utf8').trim();
const banner = `/*! With uPlot:\n\n${licence('uplot')}\n\nWith d3-array:\n\n${licence('d3-array')}\n*/`;

await build({
  entryPoints: [here('src/metrics/index.ts')],
  outfile: here('../nbdist/widgets/static/metrics.js'),
  bundle: true,
  format: 'esm',
  target: 'es2021',
  minify: process.argv.includes('--minify'),
  legalComments: 'none',
  banner: { js: banner, css: banner },
  logLevel: 'warning'
});
