/** Finds the cell that a job came from, and shows it. */

import { CodeCellModel } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IJob } from '../server/records';

/** The place of a job's cell in a notebook; -1 if it is not there any more. */
export function cellOf(panel: NotebookPanel, job: IJob): number {
  // Of a long line the record has only the beginning.
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
    // A cell that runs has no number yet.
    (each: (typeof cells)[0]) =>
      each.code?.executionState === 'running' && has(each.source),
    (each: (typeof cells)[0]) => each.code?.executionCount === job.number,
    (each: (typeof cells)[0]) =>
      each.code !== null && begins !== '' && has(each.source)
  ];
  return looks.map(look => cells.findIndex(look)).find(at => at >= 0) ?? -1;
}

/** Make a cell the active one, and have it seen with one of its lines. */
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
