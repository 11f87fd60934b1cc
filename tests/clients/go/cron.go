// [cron]
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v4"
)

const (
	jobTTL = time.Minute     // three times as long as one day's payment may take
	zone   = "Europe/Berlin" // the session's own may be any
	begin  = "00:00"         // "23:55": a day goes from there to 23:55 of the next
)

// payRewards pays each player for today, and for the days that were missed. It gives what has happened.
func payRewards(ctx context.Context, url, node string) (answer string, err error) {
	connecting, cancel := within(ctx, jobTTL)
	defer cancel()
	conn, err := pgx.Connect(connecting, url)
	if err != nil {
		return "", err
	}
	defer func() {
		closing, cancel := within(context.Background(), jobTTL)
		defer cancel()
		conn.Close(closing)
	}()

	deadline := time.Now().Add(jobTTL)
	token, err := acquireLease(ctx, conn, "daily-reward", node, jobTTL)
	if err != nil {
		return "", err
	}
	if token == nil {
		return whyNot(ctx, conn)
	}
	done, err := payDays(ctx, conn, *token, deadline)
	switch {
	case err != nil && (isSuperseded(err) || conn.IsClosed()):
		return fmt.Sprintf("lost: token %d: %s", *token, explain(err)), nil // the next one goes on from the checkpoint
	case err != nil:
		return "", err
	case !done:
		return fmt.Sprintf("lost: token %d was taken over, or has expired", *token), nil
	}
	return "done", nil
}

func whyNot(ctx context.Context, conn *pgx.Conn) (answer string, err error) {
	ctx, cancel := within(ctx, jobTTL)
	defer cancel()
	why := `SELECT CASE WHEN EXISTS (SELECT FROM lease_status WHERE name = 'daily-reward' AND state = 'completed')
		THEN 'done already for today' ELSE 'somebody else has it' END`
	err = conn.QueryRow(ctx, why).Scan(&answer)
	return answer, err
}

// payDays is not done if the lease is lost.
func payDays(ctx context.Context, conn *pgx.Conn, token int64, deadline time.Time) (done bool, err error) {
	today, err := thisDay(ctx, conn) // once, so that midnight does not come in between
	if err != nil {
		return false, err
	}
	for time.Now().Before(deadline) {
		if done, err := payDay(ctx, conn, token, today); err != nil || done {
			return done, err
		}
		asked := time.Now()
		mine, err := extendLease(ctx, conn, "daily-reward", token, jobTTL)
		if err != nil || !mine {
			return false, err
		}
		deadline = asked.Add(jobTTL)
	}
	return false, nil
}

func thisDay(ctx context.Context, conn *pgx.Conn) (today string, err error) {
	ctx, cancel := within(ctx, jobTTL)
	defer cancel()
	err = conn.QueryRow(ctx, "SELECT ((now() AT TIME ZONE $1) - $2::text::interval)::date::text", zone, begin).Scan(&today)
	return today, err
}

// payDay is one transaction: the day, the checkpoint that says so, and with the last day the end of the job.
func payDay(ctx context.Context, conn *pgx.Conn, token int64, today string) (done bool, err error) {
	ctx, cancel := within(ctx, jobTTL)
	defer cancel()
	err = conn.BeginFunc(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT lease_fence('daily-reward', $1)", token); err != nil {
			return err
		}
		var next string
		read := "SELECT coalesce((lease_checkpoint('daily-reward') ->> 'paid')::date + 1, $1::text::date)::text"
		if err := tx.QueryRow(ctx, read, today).Scan(&next); err != nil {
			return err
		}
		if next <= today {
			if _, err := tx.Exec(ctx, "UPDATE player SET coins = coins + 100"); err != nil {
				return err
			}
			save := "SELECT lease_checkpoint('daily-reward', $1, jsonb_build_object('paid', $2::text))"
			if _, err := tx.Exec(ctx, save, token, next); err != nil {
				return err
			}
		}
		if done = next >= today; done {
			complete := `SELECT lease_complete('daily-reward', $1,
				until => ($2::text::date + 1 + $3::text::time) AT TIME ZONE $4)`
			_, err := tx.Exec(ctx, complete, token, today, begin, zone)
			return err
		}
		return nil
	})
	return done && err == nil, err
}

// [end cron]
