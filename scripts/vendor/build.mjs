// Bundles the explorer's libraries into kgserve/server/http/static/explorer/vendor: one file for each module here, named with
// the beginning of its SHA-256 so that browsers cache it forever, and a line that exports it under its plain name. Copies
// Swagger UI, which /docs uses, into kgserve/server/http/static/swagger.

import { createHash } from "node:crypto";
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { gzipSync } from "node:zlib";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const top = join(here, "..", "..");
const target = join(top, "kgserve/server/http/static/explorer/vendor");
const swagger = join(top, "kgserve/server/http/static/swagger");
const ofTests = join(top, "tests/explorer/vendor");
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** The folder of the package that a bundled file belongs to. */
function packageOf(input) {
  const [before, after] = input.split(/(?<=.*node_modules\/)(?!.*node_modules\/)/);
  const parts = after.split("/");
  return before + parts.slice(0, after.startsWith("@") ? 2 : 1).join("/");
}

/** The notice at the end of an Apache License, instead of its text, which is in the wheel once: in Swagger UI's file. */
const withoutTerms = (text) =>
  text.replace(/^\s*Apache License\s+Version 2\.0.*^(?=\s*Copyright)/ms, "The Apache License, Version 2.0, is printed in ../../swagger/LICENSES.txt.\n\n");

function licenceOf(folder) {
  const about = JSON.parse(readFileSync(join(here, folder, "package.json"), "utf8"));
  const file = readdirSync(join(here, folder)).find((name) => /^licen[sc]e/i.test(name));
  const text = file ? readFileSync(join(here, folder, file), "utf8").trim() : `Licence: ${about.license}`;
  return { name: `${about.name} ${about.version} (${about.license})`, text };
}

rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
mkdirSync(ofTests, { recursive: true });
const files = {};
const packages = new Set();
for (const name of ["preact", "d3-force", "icons"]) {
  const made = await build({
    absWorkingDir: here,
    entryPoints: [`${name}.js`],
    bundle: true,
    format: "esm",
    minify: true,
    target: "es2022",
    legalComments: "none",
    metafile: true,
    write: false,
  });
  const bytes = made.outputFiles[0].contents;
  const hashed = `${name}.${sha256(bytes).slice(0, 10)}.js`;
  const line = `export * from "./${hashed}";\n`;
  writeFileSync(join(target, hashed), bytes);
  writeFileSync(join(target, `${name}.js`), line);
  files[hashed] = sha256(bytes);
  files[`${name}.js`] = sha256(line);
  for (const input of Object.keys(made.metafile.inputs)) if (input.includes("node_modules/")) packages.add(packageOf(input));
}
const byText = new Map();
for (const { name, text } of [...packages].sort().map(licenceOf)) {
  const short = withoutTerms(text);
  byText.set(short, [...(byText.get(short) ?? []), name]);
}
const licences = [...byText].map(([text, names]) => `${names.join("\n")}\n\n${text}\n`).join(`\n${"-".repeat(80)}\n\n`);
writeFileSync(join(target, "LICENSES.txt"), licences);
files["LICENSES.txt"] = sha256(licences);
const sorted = Object.fromEntries(Object.entries(files).sort(([one], [other]) => (one < other ? -1 : 1)));
writeFileSync(join(target, "manifest.json"), `${JSON.stringify(sorted, null, 2)}\n`);

const axe = join(here, "node_modules/axe-core");
writeFileSync(join(ofTests, "axe.min.js.gz"), gzipSync(readFileSync(join(axe, "axe.min.js")), { level: 9 }));
for (const name of ["LICENSE", "LICENSE-3RD-PARTY.txt"]) {
  if (existsSync(join(axe, name))) copyFileSync(join(axe, name), join(ofTests, `axe-${name}`));
}

/** The text of a file of Swagger UI, without the address of a source map that is not shipped. */
const swaggerFile = (name) => readFileSync(join(here, "node_modules/swagger-ui-dist", name), "utf8").replace(/\n*\/[*/]# sourceMappingURL=.*$/, "\n");

rmSync(swagger, { recursive: true, force: true });
mkdirSync(swagger, { recursive: true });
const swaggerFiles = {
  "LICENSES.txt": `${licenceOf("node_modules/swagger-ui-dist").name}\n\n${["LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"].map(swaggerFile).join("\n")}`,
  "swagger-ui.css": swaggerFile("swagger-ui.css"),
  "swagger-ui.js.gz": gzipSync(swaggerFile("swagger-ui-bundle.js"), { level: 9 }),
};
for (const [name, bytes] of Object.entries(swaggerFiles)) writeFileSync(join(swagger, name), bytes);
const digests = Object.fromEntries(Object.entries(swaggerFiles).map(([name, bytes]) => [name, sha256(bytes)]));
writeFileSync(join(swagger, "manifest.json"), `${JSON.stringify(digests, null, 2)}\n`);
