// [lease]
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

// A database is a connection or a pool, and not a transaction.
type database interface {
	QueryRow(context.Context, string, ...interface{}) pgx.Row
	Exec(context.Context, string, ...interface{}) (pgconn.CommandTag, error)
}

// within bounds what is done with a lease by a third of its time to live: on a dead network it ends before the lease does.
func within(ctx context.Context, ttl time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, ttl/3)
}

// node is for people who read lease_status; it proves nothing.
func node() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// acquireLease gives no token when somebody else has the lease, or it is completed.
func acquireLease(ctx context.Context, db database, name, node string, ttl time.Duration) (token *int64, err error) {
	ctx, cancel := within(ctx, ttl)
	defer cancel()
	err = db.QueryRow(ctx, "SELECT lease_acquire($1, $2, $3)", name, node, ttl).Scan(&token)
	if err == nil && token != nil { // a predecessor that is frozen in a transaction would keep its row locks
		_, err = db.Exec(ctx, "SELECT count(*) FROM lease_evict($1, $2)", name, *token)
	}
	return token, err
}

// extendLease says whether it is still ours.
func extendLease(ctx context.Context, db database, name string, token int64, ttl time.Duration) (mine bool, err error) {
	ctx, cancel := within(ctx, ttl)
	defer cancel()
	err = db.QueryRow(ctx, "SELECT lease_extend($1, $2) IS NOT NULL", name, token).Scan(&mine)
	return mine, err
}

// [end lease]
