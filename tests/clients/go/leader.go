// [holding]
package main

import (
	"context"
	"log"
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
// A round of work ends with its context. An error ends the term, so it keeps to itself what is no reason for that.
type round func(ctx context.Context, token int64) error

// campaign goes on until its context ends. When a leader dies, another one leads at most ttl and a third of it later.
// The pool is not the one that work takes its connections from.
func campaign(ctx context.Context, pool *pgxpool.Pool, node string, ttl time.Duration, work round) {
	for ctx.Err() == nil {
		if err := lead(ctx, pool, node, ttl, work); err != nil { // LX001 as well: this node is a candidate again
			log.Print("not the leader: ", explain(err))
		}
		pause(ctx, ttl/3)
	}
}

// lead is a term. Its token is a constant: nothing that was read under another one is written under this one.
func lead(ctx context.Context, pool *pgxpool.Pool, node string, ttl time.Duration, work round) error {
	asked := time.Now()
	token, err := acquireLease(ctx, pool, "scheduler", node, ttl)
	if err != nil || token == nil {
		return err // no token: somebody else leads
	}
	log.Print("leads under token ", *token)
	leading, stop := holding(ctx, ttl, asked, func(ctx context.Context) (bool, error) {
		return extendLease(ctx, pool, "scheduler", *token, ttl)
	})
	defer func() {
		stop()
		ctx, cancel := within(context.Background(), ttl)
		defer cancel()
		pool.Exec(ctx, "SELECT lease_release('scheduler', $1)", *token) // lost: false, and nothing happens
	}()
	for leading.Err() == nil {
		if err := work(leading, *token); err != nil {
			return err
		}
		pause(leading, ttl/10)
	}
	return leading.Err()
}

func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}

// [end leader]
