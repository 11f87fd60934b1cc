# frozen_string_literal: true

# The scenarios of docs/ruby.md, for ActiveRecord.
require 'stringio'
require_relative 'daily_reward'
require_relative 'gift'
require_relative 'leader'
require_relative 'migration'

# What the job of this node prints.
def job
  before = [$stdout, $stderr]
  said = $stdout = $stderr = StringIO.new
  begin
    DailyReward.call
  rescue SystemExit => e
    check(!e.success?, 'a failure is no success')
  ensure
    $stdout, $stderr = before
  end
  said.string
end

def rewards
  Reward.order(:day, :player_id).pluck(:player_id)
end

def today
  Lease.value("SELECT (now() AT TIME ZONE 'Europe/Berlin' - '5 min'::interval)::date::text")
end

def recipes(stack, admin)
  Player.reset_column_information
  CreateRewards.migrate(:up)
  5.times { |n| Player.create!(name: "player #{n}") }
  DailyReward.send(:remove_const, :CHUNK)
  DailyReward.const_set(:CHUNK, 2)

  stack.scenario('checkpoint') do
    # The first node pays two players, and is cut off in the middle of the next two.
    Lease.hold('daily-reward', 'node-1', 30) do |lease|
      lease.transaction { DailyReward.pay_chunk(lease) }
      error_of(ActiveRecord::StatementInvalid) do
        lease.transaction do
          DailyReward.pay_chunk(lease)
          value(admin, 'SELECT pg_terminate_backend($1, 5000)', db.raw_connection.backend_pid)
        end
      end
      equal('2', value(admin, 'SELECT count(*) FROM rewards'))
      ActiveRecord::Base.clear_active_connections!
      equal("daily-reward: node-1 has it\n", job)
    end
    equal([today, 2], DailyReward.progress, 'read back')
    equal("daily-reward: #{today} is done\n", job, 'the second node does the rest')
    equal([1, 2, 3, 4, 5], rewards, 'each player once')
    check(job.start_with?('daily-reward: done already, until 20'), 'done for today')
    ends = value(admin, "SELECT completed_until AT TIME ZONE 'Europe/Berlin' FROM lease_status WHERE name = 'daily-reward'")
    equal("#{Date.parse(today) + 1} 00:05:00", ends)
  end

  stack.scenario('catch_up') do
    # Yesterday's job was left unfinished: it is brought to its end, and then comes today.
    value(admin, "SELECT lease_force_release('daily-reward')")
    yesterday = (Date.parse(today) - 1).iso8601
    Lease.hold('daily-reward', 'node-1', 30) do |lease|
      Lease.value('SELECT lease_checkpoint(?, ?, ?)', lease.name, lease.token, { day: yesterday, after: 3, done: false }.to_json)
      lease.transaction { Reward.delete_all }
    end
    equal("#{yesterday} is done", DailyReward.run('node-2'))
    equal([[4, Date.parse(yesterday)], [5, Date.parse(yesterday)]], Reward.order(:player_id).pluck(:player_id, :day))
    DailyReward.run('node-2')
    equal([4, 5, 1, 2, 3, 4, 5], rewards)
  end

  # The day is the same whatever the session's time zone is, and for a job of 23:55 on both sides of midnight.
  stack.scenario('day') do
    set = lambda do |zone, starts|
      { ZONE: zone, STARTS: starts }.each { |name, to| DailyReward.send(:remove_const, name) && DailyReward.const_set(name, to) }
    end
    db.execute("SET TIME ZONE 'America/Los_Angeles'")
    [['Asia/Tokyo', '00:05'], ['Asia/Tokyo', '23:55']].each do |zone, starts|
      set.call(zone, starts)
      day = value(admin, 'SELECT (now() AT TIME ZONE $1::text - $2::interval)::date', zone, starts)
      equal(day, DailyReward.progress[0], "the day that begins at #{starts}")
      value(admin, "SELECT lease_force_release('daily-reward')")
      admin.exec('ALTER TABLE rewards DISABLE TRIGGER USER; DELETE FROM rewards; ALTER TABLE rewards ENABLE TRIGGER USER')
      DailyReward.run('node-1')
      ends = value(admin, "SELECT completed_until AT TIME ZONE $1 FROM lease_status WHERE name = 'daily-reward'", zone)
      equal("#{Date.parse(day) + 1} #{starts}:00", ends)
    end
    set.call('Europe/Berlin', '00:05')
  end

  # A predecessor that is frozen between a write and its COMMIT, with the row that is to be written next.
  stack.scenario('predecessor_in_the_way') do
    value(admin, "SELECT lease_force_release('daily-reward')")
    token = acquire('daily-reward', 0.2)
    Lease.value('SELECT lease_checkpoint(?, ?, ?)', 'daily-reward', token, { day: '2026-11-28', after: 0, done: false }.to_json)
    frozen = PG.connect(dbname: DATABASE)
    frozen.exec("BEGIN; SELECT lease_fence('daily-reward', #{token}); INSERT INTO rewards (player_id, day, amount) VALUES (1, '2026-11-28', 100)")
    wait_for_expiry(admin, 'daily-reward')
    db.execute("SET statement_timeout = '5 s'")
    equal("daily-reward: 2026-11-28 is done\n", job)
    db.execute('RESET statement_timeout')
    error_of(PG::Error) { frozen.exec('COMMIT') }
    equal([1, 2, 3, 4, 5], Reward.where(day: '2026-11-28').order(:player_id).pluck(:player_id))
  end

  # One line, no traceback, with what the server says about the token.
  stack.scenario('says_that_it_is_lost') do
    value(admin, "SELECT lease_force_release('daily-reward')")
    token = nil
    error = error_of(Lease::Lost) do
      Lease.hold('daily-reward', 'node-1', 30) do |lease|
        lease.transaction do
          Player.create!(name: 'in a table without a fence')
          token = take_over(admin, 'daily-reward')
        end
      end
    end
    check(error.message.include?("token #{token} was granted later"), error.message)
    value(admin, "SELECT lease_force_release('daily-reward')")
    admin.exec('ALTER TABLE rewards RENAME TO gone')
    check(job.match?(/\Adaily-reward: ActiveRecord::StatementInvalid: .*rewards.*\n\z/), 'one line')
    admin.exec('ALTER TABLE gone RENAME TO rewards')
  end

  # The heartbeat's connection is well and the work's gives no answer: nobody would lead for ever.
  stack.scenario('work_without_answer') do
    Lease.hold('hangs', 'node-1', 2, limit: 1) do |lease|
      other = Thread.new { until_true('the expiry') { value(admin, "SELECT state FROM lease_status WHERE name = 'hangs'") == 'expired' } && take_over(admin, 'hangs') }
      db.execute('SELECT pg_sleep(6)')
      check(!other.alive?, 'the heartbeat went on beside work that hangs')
      check(!lease.held?, 'it is held')
    end
  end

  stack.scenario('once') do
    seen = nil
    ActiveRecord::Base.transaction do
      seen = Lease.value('SELECT once(?)', 'payout:2026-11-29')
      raise ActiveRecord::Rollback
    end
    equal([true, true, false], [seen] + Array.new(2) { Lease.value('SELECT once(?)', 'payout:2026-11-29') })
    equal([true, false, 5], [Gift.give, Gift.give, Gift.count])
    admin.exec('ALTER TABLE players RENAME TO gone')
    error_of(ActiveRecord::StatementInvalid) { Gift.give('2026-11-28') }
    admin.exec('ALTER TABLE gone RENAME TO players')
    equal([true, 10], [Gift.give('2026-11-28'), Gift.count], 'after a failure')
  end

  stack.scenario('leader') do
    answers = Queue.new
    source = -> { (answer = answers.pop).is_a?(Exception) ? raise(answer) : answer }
    said = +''
    before = $stderr
    $stderr = StringIO.new(said)
    leader = Thread.new { Leader.run('prices', 'node-1', ttl: 5) { |lease| Price.copy(lease, source) } }
    prices = -> { value(admin, "SELECT string_agg(amount::text, ',' ORDER BY id) FROM prices") }
    answers << 1 << RuntimeError.new('503') << 2
    until_true('the price after an error of the source') { prices.call == '1,2' }
    equal('1', value(admin, "SELECT grants FROM lease_status WHERE name = 'prices'"), 'grants, as an error of the source ends no term')
    # What was read under the old token is not written.
    token = take_over(admin, 'prices')
    answers << 3
    until_true('the loss is said') { said.include?('Lease::Lost') }
    value(admin, "SELECT lease_release('prices', $1)", token)
    answers << 4
    until_true('the next term') { prices.call == '1,2,4' }
    # A connection that is lost costs the term, and not the leader.
    value(admin, "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
    answers << 5 << 6 << 7
    until_true('another term') { prices.call.end_with?('7') }
    leader.kill.join
    $stderr = before
    ActiveRecord::Base.clear_active_connections!
  end
end
