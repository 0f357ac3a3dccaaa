//! The reserve script of the article that this system began with, written anew from its idea: look the user up, compare
//! the counter, count and mark.

use redis::{Cmd, Pipeline, RedisResult, aio::MultiplexedConnection};

/// Its source. KEYS: counter, set of users. ARGV: user, quantity, ttl in seconds. Answers 0 success, 1 duplicate, 2 sold
/// out. A missing counter counts as zero.
pub const SOURCE: &str = "\
local counter, users = KEYS[1], KEYS[2]
local user, quantity, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('SISMEMBER', users, user) == 1 then return 1 end
if tonumber(redis.call('GET', counter) or '0') >= quantity then return 2 end
redis.call('INCR', counter)
redis.call('SADD', users, user)
redis.call('EXPIRE', counter, ttl)
redis.call('EXPIRE', users, ttl)
return 0
";

/// Seconds.
pub const TTL: i64 = 3_600;

/// The script, loaded, with the keys of one campaign.
#[derive(Clone, Debug)]
pub struct ArticleScript {
    hash: String,
    counter: String,
    users: String,
}

impl ArticleScript {
    /// Loads it.
    pub async fn load(connection: &mut MultiplexedConnection, campaign: &str) -> RedisResult<Self> {
        let (counter, users) = keys(campaign);
        Ok(Self {
            hash: redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(SOURCE)
                .query_async(connection)
                .await?,
            counter,
            users,
        })
    }

    /// One call.
    pub fn call(&self, user: &str, quantity: i64) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&self.hash)
            .arg(2)
            .arg(&self.counter)
            .arg(&self.users)
            .arg(user)
            .arg(quantity)
            .arg(TTL);
        command
    }

    /// One call in a pipeline.
    pub fn add_to(&self, pipeline: &mut Pipeline, user: &str, quantity: i64) {
        pipeline.add_command(self.call(user, quantity));
    }
}

/// Counter and users of a campaign.
pub fn keys(campaign: &str) -> (String, String) {
    (
        format!("article:{{{campaign}}}:occupied-count"),
        format!("article:{{{campaign}}}:users"),
    )
}
