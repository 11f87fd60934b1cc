// [prices]
package main

import (
	"context"
	"log"
	"time"

	"github.com/jackc/pgx/v4/pgxpool"
)

// prices reads the source first, outside of a transaction, as that may take long, and writes in one statement with the
// token that was there before.
func prices(pool *pgxpool.Pool, ttl time.Duration, source func(context.Context) (int, error)) round {
	return func(ctx context.Context, token int64) error {
		amount, err := source(ctx)
		if err != nil {
			log.Print("no price this time: ", err) // no reason to give up
			return nil
		}
		ctx, cancel := within(ctx, ttl) // on a dead network the heartbeat alone would keep the lease for ever
		defer cancel()
		save := `INSERT INTO price (id, amount, token) VALUES (1, $1, $2)
			ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, token = excluded.token`
		_, err = pool.Exec(ctx, save, amount, token)
		return err
	}
}

// [end prices]
