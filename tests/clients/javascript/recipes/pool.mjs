// [pool]
import pg from 'pg';

// A pool of pg for an ORM, in which no call waits for longer than that many ms. A dead connection is destroyed: after a query_timeout
// a transaction of Drizzle would give it back to the pool, for the next one to hang on.
export function createPool(config, ms) {
  const pool = new pg.Pool({ ...config, connectionTimeoutMillis: ms, idleTimeoutMillis: ms / 2 });
  pool.on('connect', (client) => {
    const { stream } = client.connection;
    stream.setTimeout(ms, () => stream.destroy(new Error(`no answer for ${ms} ms`)));
    client.on('error', () => {}); // a session that ends while nobody listens to its client ends the process
  });
  pool.on('error', (error) => console.error('idle session:', error.message));
  return pool;
}
// [end pool]
