//! Starts the rebuild of a state that is missing: in the background, one at a time for each campaign and process.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use campaign::rebuild::{Force, Rebuilt};

use super::Door;
use crate::{campaigns::LiveCampaign, metrics::RebuildResult};

/// Before the next one, where this one did not build the state: claims keep asking for it.
const PAUSE: Duration = Duration::from_millis(500);

/// Starts a rebuild unless one is under way here.
pub(super) fn start(door: &Arc<Door>, campaign: &Arc<LiveCampaign>) {
    if campaign.lane.begin_rebuild() {
        door.parts.metrics.rebuilds_started.inc();
        door.rebuilds.spawn(run(door.clone(), campaign.clone()));
    }
}

async fn run(door: Arc<Door>, campaign: Arc<LiveCampaign>) {
    let _under_way = UnderWay(&campaign);
    let result = rebuild(&door, &campaign).await;
    door.parts.metrics.rebuilt(result);
    if result != RebuildResult::Done {
        let pause = tokio::time::sleep(PAUSE.mul_f64(1.0 + rand::random::<f64>()));
        door.parts.shutdown.run_until_cancelled(pause).await;
    }
}

struct UnderWay<'a>(&'a LiveCampaign);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.lane.end_rebuild();
    }
}

async fn rebuild(door: &Door, campaign: &LiveCampaign) -> RebuildResult {
    let name = &campaign.row.name;
    let stop = door.parts.shutdown.cancelled();
    match door.parts.rebuilder.rebuild_unless(stop, name, Force::IfMissing).await {
        Ok(ControlFlow::Continue(Rebuilt::Done { epoch, users, took })) => {
            tracing::info!(campaign = %name, %epoch, users, ?took, "the state is rebuilt");
            RebuildResult::Done
        }
        Ok(ControlFlow::Continue(Rebuilt::NotNeeded | Rebuilt::Superseded)) => RebuildResult::NotNeeded,
        Ok(ControlFlow::Continue(Rebuilt::NoCampaign)) => {
            door.parts.campaigns.refresh_if_due().await;
            RebuildResult::NotNeeded
        }
        Ok(ControlFlow::Break(())) => {
            tracing::info!(campaign = %name, "the door closes, the rebuild is left to another one");
            RebuildResult::Stopped
        }
        Err(error) => {
            tracing::error!(campaign = %name, %error, "the state could not be rebuilt, the next claim tries again");
            RebuildResult::Failed
        }
    }
}
