//! The time after which a request whose answer was lost cannot be carried out any more.

use ostler_sdk::{api, duration, prelude::*};

/// Time within which a lost request may still be carried out, unless the plugin is configured otherwise.
const DEFAULT_SETTLE_MS: u64 = 5000;

/// Configuration of the plugin.
#[api]
struct Config {
    /// Time within which a lost request may still be carried out, such as 5s.
    settle: Option<String>,
}

/// Returns whether a request of which its server shows nothing, in a reconcile that began at this time, will not be carried out any
/// more. `searched_at` is the time of the first such answer, which it is set to: that answer shows that the server works off
/// requests, and one that arrived before it has had an effect some time later. The time of the request says less: it may have
/// waited for its turn, and the server may have hung since.
pub fn has_settled(ctx: &Context, began_at: u64, searched_at: &mut Option<i64>) -> Result<bool, Failure> {
    let settle = read_settle_time(ctx)?;
    let Some(searched_at) = searched_at.and_then(|at| u64::try_from(at).ok()) else {
        *searched_at = i64::try_from(ctx.now()).ok();
        return Ok(false);
    };
    Ok(began_at >= searched_at + settle)
}

fn read_settle_time(ctx: &Context) -> Result<u64, Failure> {
    let Some(settle) = ctx.config::<Config>()?.settle else {
        return Ok(DEFAULT_SETTLE_MS);
    };
    duration(&settle).ok_or_else(|| {
        let message =
            format!("settle: {settle} in the plugin's configuration is not a duration, such as 5s.");
        Failure::terminal("InvalidConfig", message)
    })
}
