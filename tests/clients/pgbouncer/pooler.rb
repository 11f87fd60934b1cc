# frozen_string_literal: true

require 'etc'
require 'fileutils'
require 'tmpdir'
require_relative '../ruby/harness'
include Checks

# A PgBouncer of our own before the cluster, on a socket in a directory of its own.
class Pooler
  PROGRAM = ENV['PATH'].split(':').push('/usr/sbin').map { |dir| "#{dir}/pgbouncer" }.find { |file| File.executable?(file) }
  VERSION = `#{PROGRAM} --version`[/PgBouncer (\S+)/, 1]
  # A role that the pool `app_role` logs in as, for what a superuser may do anyway.
  ROLE = 'client_pgbouncer_app'

  def initialize(mode, database)
    @directory = Dir.mktmpdir('lx')
    @clients = []
    configure(mode, database)
    # It refuses to run as root.
    user = Process.uid.zero? ? ['-u', 'postgres'] : []
    FileUtils.chown('postgres', nil, [@directory] + Dir["#{@directory}/*"]) if Process.uid.zero?
    @pid = Process.spawn(PROGRAM, *user, "#{@directory}/ini", %i[out err] => "#{@directory}/log")
    at_exit { stop }
    give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 20
    begin
      @console = PG.connect(host: @directory, port: 6432, dbname: 'pgbouncer', user: ENV.fetch('PGUSER'))
    rescue PG::ConnectionBad
      sleep(0.02)
      retry if Process.clock_gettime(Process::CLOCK_MONOTONIC) < give_up
      raise File.read("#{@directory}/log")
    end
  end

  # `app` is the pool that the scenarios use, of two server connections.
  def connect(pool = 'app', **options)
    connection = PG.connect(host: @directory, port: 6432, dbname: pool, user: ENV.fetch('PGUSER'), **options)
    connection.set_notice_processor { |message| @last_notice = message }
    @clients << connection
    connection
  end

  def close_clients
    @clients.reject(&:finished?).each(&:close)
    @clients.clear
  end

  attr_reader :last_notice

  # A command of PgBouncer's console.
  def command(text)
    @console.exec(text)
  end

  # The next statement of whoever comes from a session that was not there before.
  def new_sessions
    command('RECONNECT')
  end

  # How many clients of a pool wait for a server connection.
  def waiting(pool = 'app')
    command('SHOW POOLS').find { |row| row['database'] == pool }.fetch('cl_waiting').to_i
  end

  def log
    File.read("#{@directory}/log")
  end

  private

  def configure(mode, database)
    server = "host=#{ENV.fetch('PGHOST')} port=#{ENV.fetch('PGPORT')} dbname=#{database}"
    File.write("#{@directory}/users", "\"#{ENV.fetch('PGUSER')}\" \"\"\n\"#{ROLE}\" \"\"\n")
    File.write("#{@directory}/ini", <<~INI)
      #{File.read("#{__dir__}/pools.ini").gsub('host=127.0.0.1 port=5432 dbname=app', server)}
      app_role = #{server} user=#{ROLE}
      [pgbouncer]
      pool_mode = #{mode}
      unix_socket_dir = #{@directory}
      listen_port = 6432
      auth_type = trust
      auth_file = #{@directory}/users
      admin_users = #{ENV.fetch('PGUSER')}
    INI
  end

  def stop
    Process.kill('TERM', @pid)
    Process.wait(@pid)
    FileUtils.rm_rf(@directory)
  end
end
