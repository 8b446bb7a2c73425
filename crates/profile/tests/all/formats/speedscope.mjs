// Prints what speedscope makes of a file: for each profile in it, its functions.
//
// speedscope is published as a page. Its importers are found in the page's script, which runs here
// without a page as far as it gets: node speedscope.mjs DIRECTORY-OF-THE-PAGE FILE
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [release, file] = process.argv.slice(2);
const script = fs.readdirSync(release).find((name) => /^speedscope-\w+\.js$/.test(name));
const text = fs.readFileSync(path.join(release, script), "utf8");
const opened = text.replace(
  /([\w$]+)=\{\}(;[\w$]+\(\1,\{importFromFileSystemDirectoryEntry:)/,
  "$1=globalThis.importers={}$2",
);
const anything = new Proxy(function () {}, {
  get: (_, key) => (key === Symbol.toPrimitive ? () => "" : anything),
  set: () => true,
  apply: () => anything,
  construct: () => anything,
});
const quiet = { ...console, log() {}, info() {} };
const page = { console: quiet, TextDecoder, TextEncoder, URL, setTimeout, clearTimeout, atob, btoa };
for (const name of ["document", "navigator", "location", "localStorage", "matchMedia"]) {
  page[name] = anything;
}
page.window = page.self = page;
vm.createContext(page);
let why;
try {
  vm.runInContext(opened, page);
} catch (error) {
  why = error; // There is no page to draw. The importers are defined before.
}
await new Promise((done) => setTimeout(done));
if (!page.importers) {
  throw why ?? new Error("speedscope has no importers where they were");
}
const bytes = fs.readFileSync(file);
const buffer = new Uint8Array(bytes).buffer;
const group = await page.importers.importProfilesFromArrayBuffer(path.basename(file), buffer);
if (!group) {
  throw new Error("speedscope does not know the format");
}
const profiles = group.profiles.map((profile) => {
  const functions = [];
  profile.forEachFrame((frame) => {
    functions.push({ name: frame.name, self: frame.getSelfWeight(), total: frame.getTotalWeight() });
  });
  return {
    name: profile.getName(),
    unit: profile.getWeightUnit(),
    total: profile.getTotalNonIdleWeight(),
    functions,
  };
});
console.log(JSON.stringify(profiles));
