// Reads chat documents, validates them, recomputes their digests, and writes them again as JavaScript does.
// node rewriting.mjs MODULES SCHEMA FOLDER: documents are *.json in the folder, and become *.js.json.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const [modules, schema, folder] = process.argv.slice(2);
const { default: Ajv } = createRequire(`${modules}/`)("ajv/dist/2020.js");
const validate = new Ajv().compile(JSON.parse(readFileSync(schema, "utf8")));

// RFC 8785: JavaScript's own JSON, with sorted names and without spaces.
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
  return `{${members.join(",")}}`;
}

for (const file of readdirSync(folder).filter((name) => /^\d+\.json$/.test(name))) {
  const document = JSON.parse(readFileSync(`${folder}/${file}`, "utf8"));
  if (!validate(document)) throw new Error(`${file}: ${JSON.stringify(validate.errors)}`);
  const { digest, signature, ...rest } = document;
  const found = createHash("sha256").update(canonical(rest)).digest("hex");
  if (digest !== found) throw new Error(`${file}: the digest is ${digest}, expected ${found}`);
  writeFileSync(`${folder}/${file.replace(".json", ".js.json")}`, JSON.stringify(document));
}
