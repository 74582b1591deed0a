import svelte from "eslint-plugin-svelte";
import globals from "globals";
import ts from "typescript-eslint";

export default ts.config(
  ...ts.configs.strict,
  ...svelte.configs.recommended,
  { languageOptions: { globals: { ...globals.browser } } },
  { files: ["test/**"], languageOptions: { globals: { ...globals.node } } },
  { files: ["**/*.svelte", "**/*.svelte.ts"], languageOptions: { parserOptions: { parser: ts.parser } } },
  {
    rules: {
      // Text is shown as text; a page that builds HTML shows what others wrote as markup.
      "svelte/no-at-html-tags": "error",
      "no-eval": "error",
      // Queries and maps here are made for one call and not shown.
      "svelte/prefer-svelte-reactivity": "off",
      // Addresses of the page are behind its `#`, which a router of a framework would not know.
      "svelte/no-navigation-without-resolve": "off",
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_", argsIgnorePattern: "^_", destructuredArrayIgnorePattern: "^_" }],
    },
  },
);
