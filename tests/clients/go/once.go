// [once]
package main

import (
	"context"

	"github.com/jackc/pgx/v4"
)

// giveOnce is not the first if it is done already for today.
func giveOnce(ctx context.Context, conn *pgx.Conn) (first bool, err error) {
	err = conn.BeginFunc(ctx, func(tx pgx.Tx) error {
		once := "SELECT once('daily-gift:' || (now() AT TIME ZONE 'Europe/Berlin')::date)"
		if err := tx.QueryRow(ctx, once).Scan(&first); err != nil || !first {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE gift SET coins = coins + 100")
		return err
	})
	return first, err
}

// [end once]
