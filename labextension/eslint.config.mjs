import js from '@eslint/js';
import jupyter from '@jupyter/eslint-plugin';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

export default defineConfig([
  { ignores: ['node_modules', 'lib', '.yarn'] },
  js.configs.recommended,
  {
    files: ['**/*.ts', '**/*.tsx'],
    extends: [tseslint.configs.strictTypeChecked, jupyter.configs.recommended],
    plugins: { jupyter },
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      '@typescript-eslint/naming-convention': [
        'error',
        { selector: 'interface', format: ['PascalCase'], prefix: ['I'] }
      ],
      // Indices are within bounds that the code has computed just before.
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true }
      ],
      curly: ['error', 'all'],
      eqeqeq: 'error',
      'no-console': 'error',
      'prefer-arrow-callback': 'error'
    }
  },
  {
    files: ['src/plugins/**', 'src/sidebar/**'],
    // `signal.connect(slot, this)` binds the slot.
    rules: { '@typescript-eslint/unbound-method': 'off' }
  },
  {
    files: ['src/plugins/**'],
    // These modules have a few kB, and are needed as soon as the page is loaded.
    rules: { 'jupyter/prefer-lazy-imports': 'off' }
  },
  {
    files: ['src/metrics/**', 'tests/**'],
    // The widget's module runs in every front end, and gets no translator.
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  {
    files: ['tests/**'],
    // `test` of node:test returns a promise that need not be awaited.
    rules: { '@typescript-eslint/no-floating-promises': 'off' }
  },
  {
    files: ['tools/**'],
    languageOptions: { globals: { process: 'readonly', URL: 'readonly' } }
  }
]);
