// [schema]
import { bigint, integer, pgTable, text } from 'drizzle-orm/pg-core';

export const reward = pgTable('reward', {
  player: integer().primaryKey(),
  amount: integer().notNull(),
});

export const entry = pgTable('entry', {
  id: integer().primaryKey(),
  amount: integer().notNull(),
  token: bigint({ mode: 'bigint' }), // mode 'number' rounds above 2^53
});

export const feed = pgTable('feed', {
  id: integer().primaryKey(),
  title: text().notNull(),
  token: bigint({ mode: 'bigint' }),
});
// [end schema]
