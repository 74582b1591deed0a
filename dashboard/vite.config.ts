import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// Names without hashes: the gateway compiles the files in and tells versions apart by ETag.
export default defineConfig({
  base: "./",
  plugins: [svelte()],
  build: {
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        assetFileNames: "app[extname]",
        codeSplitting: false,
      },
    },
  },
});
