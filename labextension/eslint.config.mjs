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
      // Indices stay within what was measured just before.
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
    // A signal's slot is bound by the object that is given with it.
    rules: { '@typescript-eslint/unbound-method': 'off' }
  },
  {
    files: ['src/plugins/**'],
    // A few kB, needed as soon as the page is there.
    rules: { 'jupyter/prefer-lazy-imports': 'off' }
  },
  {
    files: ['src/metrics/**', 'tests/**'],
    // A widget's module is drawn by any front end, and not handed a translator.
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  {
    files: ['tests/**'],
    // node:test hands back promises that nobody waits for.
    rules: { '@typescript-eslint/no-floating-promises': 'off' }
  },
  {
    files: ['tools/**'],
    languageOptions: { globals: { process: 'readonly', URL: 'readonly' } }
  }
]);
