// [holding]
package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v4/pgxpool"
)

// holding extends a lease in the background, and gives a context that is cancelled as soon as nobody may rely on the lease
// any longer: extend has said that it is lost, or has not said in time that it is not. asked: when it was acquired, by
// the clock before the call, as the answer may be late.
func holding(ctx context.Context, ttl time.Duration, asked time.Time, extend func(context.Context) (bool, error)) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	deadline := time.AfterFunc(time.Until(asked.Add(ttl)), stop)
	go func() {
		defer stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(ttl / 3):
			}
			asked := time.Now()
			mine, err := extend(ctx)
			if err == nil && !mine {
				return
			}
			if err == nil { // an error says nothing about the lease
				deadline.Reset(time.Until(asked.Add(ttl)))
			}
		}
	}()
	return ctx, stop
}

// [end holding]

// [leader]
// lead is for a loop, with a pause of a third of the time to live. If the lease is free, this node leads: work runs with
// the token and a context that ends with the lease. The pool is not the one that work takes its connections from.
func lead(ctx context.Context, pool *pgxpool.Pool, node string, ttl time.Duration, work func(context.Context, int64) error) error {
	asked := time.Now()
	var token *int64
	acquire := "SELECT lease_acquire('scheduler', $1, $2)"
	if err := pool.QueryRow(ctx, acquire, node, ttl).Scan(&token); err != nil || token == nil {
		return err // no token: somebody else leads
	}
	leading, stop := holding(ctx, ttl, asked, func(ctx context.Context) (mine bool, err error) {
		extend := "SELECT lease_extend('scheduler', $1) IS NOT NULL"
		err = pool.QueryRow(ctx, extend, *token).Scan(&mine)
		return mine, err
	})
	defer stop()
	if err := work(leading, *token); err != nil {
		return err // not released: the next one waits until the time to live is over
	}
	_, err := pool.Exec(ctx, "SELECT lease_release('scheduler', $1)", *token)
	return err
}

// [end leader]
