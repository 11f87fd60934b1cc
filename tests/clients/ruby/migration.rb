# frozen_string_literal: true

# [migration]
class CreateRewards < ActiveRecord::Migration[6.1]
  def up
    enable_extension 'lock_ext'
    create_table :rewards do |t|
      t.references :player, null: false
      t.date :day, null: false
      t.integer :amount, null: false
      t.bigint :token
      t.index %i[player_id day], unique: true
    end
    execute "SELECT fence_attach('rewards', 'daily-reward', 'token')"
  end

  def down
    drop_table :rewards
  end
end
# [end migration]
