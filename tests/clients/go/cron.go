// [cron]
package main

import (
	"context"
	"database/sql"
	"time"
)

// payRewards runs on every node, once a day: it pays each player for today, and for the days that were missed.
func payRewards(ctx context.Context, db *sql.DB, node string) error {
	const ttl = time.Minute // longer than one day's payment takes
	deadline := time.Now().Add(ttl)
	var token sql.NullInt64
	acquire := "SELECT lease_acquire('daily-reward', $1, $2)"
	err := db.QueryRowContext(ctx, acquire, node, ttl.String()).Scan(&token)
	if err != nil || !token.Valid {
		return err // not valid: somebody is at it, or it is done for today
	}
	for time.Now().Before(deadline) {
		if done, err := payDay(ctx, db, token.Int64); err != nil || done {
			return err
		}
		asked, mine := time.Now(), false
		extend := "SELECT lease_extend('daily-reward', $1) IS NOT NULL"
		err := db.QueryRowContext(ctx, extend, token.Int64).Scan(&mine)
		if err != nil || !mine {
			return err // not mine: whoever has it goes on from the checkpoint
		}
		deadline = asked.Add(ttl)
	}
	return nil
}

func payDay(ctx context.Context, db *sql.DB, token int64) (done bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // does nothing after the COMMIT
	if _, err := tx.Exec("SELECT lease_fence('daily-reward', $1)", token); err != nil {
		return false, err
	}
	var day string
	var ahead int
	next := `SELECT day::text, day - current_date
		FROM coalesce((lease_checkpoint('daily-reward') ->> 'paid')::date + 1, current_date) AS day`
	if err := tx.QueryRow(next).Scan(&day, &ahead); err != nil {
		return false, err
	}
	if ahead <= 0 {
		if _, err := tx.Exec("UPDATE player SET coins = coins + 100"); err != nil {
			return false, err
		}
		save := "SELECT lease_checkpoint('daily-reward', $1, jsonb_build_object('paid', $2::text))"
		if _, err := tx.Exec(save, token, day); err != nil {
			return false, err
		}
	}
	if ahead >= 0 {
		complete := "SELECT lease_complete('daily-reward', $1, until => current_date + 1)"
		if _, err := tx.Exec(complete, token); err != nil {
			return false, err
		}
	}
	return ahead >= 0, tx.Commit()
}

// [end cron]
