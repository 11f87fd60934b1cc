# frozen_string_literal: true

# What the stacks written in Ruby share: a line for each scenario, databases of their own, and conditions to wait for.
require 'pg'
require 'timeout'

# A driver under test, and the result of its scenarios.
class Stack
  NAMES = %w[grant heartbeat fenced_transaction fenced_column refused_write refused_commit once checkpoint
             wait_timeout lost_connection migration].freeze

  def initialize(name, version)
    @title = "#{name} #{version}"
    @seen = []
    @failed = false
    $stdout.sync = true
  end

  attr_writer :after_each

  def scenario(name)
    # A scenario that hangs is one that failed.
    Timeout.timeout(60) { yield }
    report('ok', name)
  rescue StandardError => e
    @failed = true
    report('not ok', name, "#{e.class}: #{e.message}")
    warn(e.full_message(highlight: false))
  ensure
    @after_each&.call
  end

  def skip(name, why)
    report('skip', name, why)
  end

  # Ends the program: with an error too where a scenario that every stack has was left out.
  def finish
    (NAMES - @seen).each { |name| report('not ok', name, 'it was not run') && @failed = true }
    exit(@failed ? 1 : 0)
  end

  private

  def report(verdict, name, why = nil)
    @seen << name
    line = "#{verdict} #{@title} - #{name}"
    line += ": #{why.gsub(/\s+/, ' ').strip}" if why
    $stdout.puts(line)
  end
end

# Mixed into the top level of a stack's program.
module Checks
  class Failed < StandardError; end

  def check(condition, what)
    raise Failed, what unless condition
  end

  def equal(expected, actual, what = 'value')
    check(expected == actual, "#{what}: #{expected.inspect} was expected, this is #{actual.inspect}")
  end

  # Gives the error that the block ends with.
  def error_of(klass)
    yield
  rescue klass => e
    e
  else
    raise Failed, "#{klass} was expected, and nothing was raised"
  end

  # Waits for what another session or the clock is about to bring.
  def until_true(what)
    give_up = now + 20
    until (value = yield)
      raise Failed, "it never came: #{what}" if now > give_up

      sleep(0.01)
    end
    value
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  # The administrator's connection, always a direct one, to a database that is made anew.
  def fresh_database(name)
    server = PG.connect(dbname: 'postgres')
    server.exec('SET client_min_messages = warning')
    server.exec("DROP DATABASE IF EXISTS #{name} WITH (FORCE)")
    server.exec("CREATE DATABASE #{name}")
    server.close
    admin = PG.connect(dbname: name)
    admin.exec('CREATE EXTENSION lock_ext')
    admin
  end

  def value(connection, sql, *arguments)
    connection.exec_params(sql, arguments).getvalue(0, 0)
  end

  def sqlstate(error)
    error.result&.error_field(PG::Result::PG_DIAG_SQLSTATE)
  end

  # Somebody else is granted the lease now, whoever has it.
  def take_over(admin, lease)
    admin.exec_params('SELECT lease_force_release($1)', [lease])
    admin.exec_params("SELECT lease_acquire($1, 'successor', '60 s')", [lease]).getvalue(0, 0).to_i
  end

  def wait_for_expiry(admin, lease)
    until_true("the expiry of #{lease}") do
      value(admin, 'SELECT state FROM lease_status WHERE name = $1', lease) == 'expired'
    end
  end

  def wait_for_waiters(admin, lease, count)
    until_true("#{count} waiters for #{lease}") do
      value(admin, 'SELECT count(*) FROM lease_waiter WHERE name = $1', lease).to_i == count
    end
  end
end
