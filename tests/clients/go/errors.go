// [errors]
package main

import (
	"errors"

	"github.com/jackc/pgconn"
)

// sqlstate works for pgx and lib/pq, and for what is built upon them.
func sqlstate(err error) string {
	var server interface{ SQLState() string }
	if errors.As(err, &server) {
		return server.SQLState()
	}
	return ""
}

// isSuperseded: stop, the lease is lost, and so is this transaction.
func isSuperseded(err error) bool { return sqlstate(err) == "LX001" }

func isRetryable(err error) bool { return sqlstate(err) == "40001" }

// explain has the detail, which says why. Of lib/pq it is pq.Error's Detail.
func explain(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Detail != "" {
		return err.Error() + ": " + server.Detail
	}
	return err.Error()
}

// [end errors]
