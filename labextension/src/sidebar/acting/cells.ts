/** Finds the cell that a job came from, and shows it. */

import { CodeCellModel } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IJob } from '../server/records';

/** The index of a job's cell in its notebook; -1 if the cell is not there any more. */
export function cellOf(panel: NotebookPanel, job: IJob): number {
  // The record has only the beginning of a long line.
  const begins = job.first_line.replace(/…$/, '');
  const cells = panel.content.widgets.map(({ model }) => ({
    source: model.sharedModel.getSource(),
    code: model instanceof CodeCellModel ? model : null
  }));
  const has = (source: string): boolean => source.includes(begins);
  const looks = [
    // After a restart of the kernel another cell may have the same number.
    (each: (typeof cells)[0]) =>
      each.code?.executionCount === job.number && has(each.source),
    // A cell has no number while it runs.
    (each: (typeof cells)[0]) =>
      each.code?.executionState === 'running' && has(each.source),
    (each: (typeof cells)[0]) => each.code?.executionCount === job.number,
    (each: (typeof cells)[0]) =>
      each.code !== null && begins !== '' && has(each.source)
  ];
  return looks.map(look => cells.findIndex(look)).find(at => at >= 0) ?? -1;
}

/** Make a cell the active one, and scroll to it, or to one of its lines. */
export async function showCell(
  panel: NotebookPanel,
  index: number,
  line: number | undefined
): Promise<void> {
  const { content } = panel;
  content.deselectAll();
  content.activeCellIndex = index;
  await content.scrollToItem(index, 'smart');
  const editor = content.widgets[index].editor;
  if (line !== undefined && editor && line <= editor.lineCount) {
    const at = line - 1;
    const end = editor.getLine(at)?.length ?? 0;
    editor.setSelection({
      start: { line: at, column: 0 },
      end: { line: at, column: end }
    });
    editor.revealPosition({ line: at, column: 0 });
  }
}
