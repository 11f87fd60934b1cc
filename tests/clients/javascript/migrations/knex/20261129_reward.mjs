// [migration]
export async function up(knex) {
  await knex.raw("SET LOCAL lock_timeout = '5 s'"); // fence_attach waits for open writers, and others would wait behind it
  await knex.raw('CREATE EXTENSION IF NOT EXISTS lock_ext');
  await knex.schema.createTable('reward', (table) => {
    table.integer('player').primary();
    table.integer('amount').notNullable();
  });
  await knex.schema.createTable('entry', (table) => {
    table.integer('id').primary();
    table.integer('amount').notNullable();
    table.bigInteger('token'); // no default: the statement says under which token it writes
  });
  await knex.schema.createTable('feed', (table) => {
    table.integer('id').primary();
    table.text('title').notNullable();
    table.bigInteger('token');
  });
  await knex.raw('SELECT fence_attach(?, ?)', ['reward', 'daily-reward']);
  await knex.raw('SELECT fence_attach(?, ?, ?)', ['entry', 'ledger', 'token']);
  await knex.raw('SELECT fence_attach(?, ?, ?)', ['feed', 'feed', 'token']);
}

export async function down(knex) {
  await knex.raw('SELECT fence_detach(?)', ['feed']);
  await knex.raw('SELECT fence_detach(?)', ['entry']);
  await knex.raw('SELECT fence_detach(?)', ['reward']);
}
// [end migration]
