// main.mjs [STACK [SCENARIO]]: plays all scenarios with all stacks, and prints a line for each.
import { existsSync, readFileSync } from 'node:fs';
import { Admin, config, takeUnheard } from './harness.mjs';
import { scenarios } from './scenarios.mjs';

const stacks = ['pg', 'postgresjs', 'knex', 'drizzle', 'prisma'];
const [onlyStack, onlyScenario] = process.argv.slice(2);
let failed = false;

// Standard output is for the result lines; Knex logs there.
const result = (line) => process.stdout.write(`${line}\n`);
console.log = console.error;

const tables = `${readFileSync(new URL('recipes/schema.sql', import.meta.url))}
  CREATE TABLE entry (id integer PRIMARY KEY, amount integer NOT NULL, token bigint);
  SELECT fence_attach('entry', 'ledger', 'token')`;

async function play(stack, scenario) {
  // The migration begins in an empty database, the others in one where it was carried out, by the stack's tool where it has one.
  const database = scenario === 'migration' ? `${stack.name}_migration` : stack.name;
  const admin = scenario === 'migration' ? await Admin.database(database) : await prepared(stack);
  const app = stack.open(config(database), 60_000);
  takeUnheard();
  try {
    await scenarios[scenario]({ stack, app, admin, database });
    const [unheard] = takeUnheard(stack);
    if (unheard)
      throw new Error(`an error that nobody listens to would have ended the application: ${unheard.message}`);
  } finally {
    await app.close();
    if (scenario === 'migration') await admin.end();
  }
}

const databases = {};
async function prepared(stack) {
  databases[stack.name] ??= (async () => {
    const admin = await Admin.database(stack.name);
    if (stack.migrate) await stack.migrate(stack.name, 'up');
    else await admin.client.query(tables);
    return admin;
  })();
  const admin = await databases[stack.name];
  await admin.reset();
  return admin;
}

for (const name of stacks.filter((each) => !onlyStack || each === onlyStack)) {
  if (name === 'prisma' && !existsSync(new URL('prisma/generated', import.meta.url))) {
    const { version } = JSON.parse(readFileSync(new URL('node_modules/prisma/package.json', import.meta.url)));
    for (const each of Object.keys(scenarios))
      result(`skip prisma ${version} - ${each}: needs Node.js 20.19, this is ${process.version}`);
    continue;
  }
  const { stack } = await import(`./stacks/${name}.mjs`);
  const { version } = JSON.parse(
    readFileSync(new URL(`./node_modules/${stack.package}/package.json`, import.meta.url)),
  );
  for (const scenario of Object.keys(scenarios).filter((each) => !onlyScenario || each === onlyScenario)) {
    const line = `${stack.name} ${version} - ${scenario}`;
    if (stack.why?.[scenario]) {
      result(`skip ${line}: ${stack.why[scenario]}`);
      continue;
    }
    try {
      await play(stack, scenario);
      result(`ok ${line}`);
    } catch (error) {
      failed = true;
      console.error(error.stack);
      result(`not ok ${line}: ${error.message.split('\n')[0]}`);
    }
  }
}
process.exit(failed ? 1 : 0); // also where a driver has left a connection open
