// Answer queries as the search of the built site does: its own worker, with its own index.
// node search.cjs SITE QUERY...: prints for each query a line of JSON, the locations of the first hits.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets", "javascripts", "workers");
const name = fs.readdirSync(folder).find((one) => /^search\..*\.js$/.test(one));
const index = JSON.parse(fs.readFileSync(path.join(site, "search.json"), "utf8"));
const answers = [];
const self = { postMessage: (message) => answers.push(message) };
vm.runInNewContext(fs.readFileSync(path.join(folder, name), "utf8"), { self, Intl });

async function ask(message) {
  self.onmessage({ data: structuredClone(message) }); // as a message to a worker is copied
  while (!answers.length) await new Promise((resolve) => setImmediate(resolve));
  return answers.pop();
}

(async () => {
  await ask({ type: 0, data: index }); // SETUP
  const filter = {
    input: { type: "operator", data: { operator: "and", operands: [] } },
    aggregation: { input: [] },
  };
  for (const input of queries) {
    const found = await ask({ type: 2, data: { input, filter } }); // QUERY
    const hits = found.data.items.map((item) => index.items[item.id].location);
    console.log(JSON.stringify(hits));
  }
})();
