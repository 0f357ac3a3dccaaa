//! `reserve`: claims a second in Redis, our script with up to 256 claims a call against the article's script with one,
//! each at the pipelining that suits it best.

use std::time::Instant;

use campaign::{
    identity::{Instance, RequestId, UserId},
    record::MAX_CLAIMS,
};

use super::Effort;
use crate::{
    article::ArticleScript,
    error::{BenchError, Result},
    latency::median,
    report::{Findings, Ratio, Section, rate},
    stage::{Installation, Stage},
};

/// Calls of ours under way at once.
const OURS_AT_ONCE: [usize; 4] = [1, 2, 4, 8];
/// Depths of the article's pipeline.
const ARTICLE_DEPTHS: [usize; 4] = [16, 64, 256, 1_024];

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let installation = stage.installation().await?;
    let search = effort.seconds / 4.0;
    let mut section = Section::new(
        "Reserve in Redis",
        "Redis alone, on a connection of its own. The script of the article does less: no request id, no batch, no \
         window, no check of the server.",
        &["script", "calls under way", "claims/s"],
    );
    let mut best_ours = (0.0, 1);
    for at_once in OURS_AT_ONCE {
        let claims = ours(&installation, at_once, search).await?;
        section.row(["ours, 256 claims a call".to_owned(), at_once.to_string(), rate(claims)]);
        if claims > best_ours.0 {
            best_ours = (claims, at_once);
        }
    }
    let mut best_article = (0.0, 1);
    for depth in ARTICLE_DEPTHS {
        let claims = article(stage, depth, search).await?;
        section.row([
            "the article's, 1 claim a call".to_owned(),
            depth.to_string(),
            rate(claims),
        ]);
        if claims > best_article.0 {
            best_article = (claims, depth);
        }
    }
    let mut ratios = Vec::new();
    for turn in 0..effort.turns {
        let theirs = article(stage, best_article.1, effort.seconds).await?;
        let claims = ours(&installation, best_ours.1, effort.seconds).await?;
        eprintln!(
            "  turn {turn}: ours {}/s, the article's {}/s",
            rate(claims),
            rate(theirs)
        );
        ratios.push(claims / theirs);
    }
    Ok(Findings {
        ratios: vec![Ratio::at_least("reserve", median(&ratios), 2.0)],
        sections: vec![section],
    })
}

/// Claims a second through the product's own client; every claim gets a slot.
async fn ours(installation: &Installation, at_once: usize, seconds: f64) -> Result<f64> {
    let campaign = installation.campaign(1_000_000_000).await?;
    let state = &installation.connections.state;
    let began = Instant::now();
    let callers = (0..at_once).map(async |_| {
        let instance = Instance::random();
        let mut call = 0;
        while began.elapsed().as_secs_f64() < seconds {
            let claims = claims_of(&instance, call);
            state.reserve(&campaign, &instance.batch(call), &claims).await?;
            call += 1;
        }
        Ok::<u64, BenchError>(call * MAX_CLAIMS as u64)
    });
    let claims: u64 = futures::future::try_join_all(callers).await?.into_iter().sum();
    Ok(claims as f64 / began.elapsed().as_secs_f64())
}

/// The claims of one full call.
pub fn claims_of(instance: &Instance, call: u64) -> Vec<(UserId, RequestId)> {
    (0..MAX_CLAIMS as u64)
        .filter_map(|i| {
            let user = format!("{instance}-{}", call * MAX_CLAIMS as u64 + i);
            Some((user.parse().ok()?, RequestId::fresh()))
        })
        .collect()
}

/// Claims a second in pipelines of `depth` calls, two of them under way: one is on the wire while Redis works on the
/// other.
async fn article(stage: &Stage, depth: usize, seconds: f64) -> Result<f64> {
    let name = Instance::random().to_string();
    let began = Instant::now();
    let callers = (0..2).map(async |caller| {
        let mut connection = stage.redis.connection().await?;
        let script = ArticleScript::load(&mut connection, &name).await?;
        let mut users = 0_usize;
        while began.elapsed().as_secs_f64() < seconds {
            let mut pipeline = redis::pipe();
            for _ in 0..depth {
                script.add_to(&mut pipeline, &format!("{name}-{caller}-{users}"), i64::MAX / 2);
                users += 1;
            }
            let answers: Vec<i64> = pipeline.query_async(&mut connection).await?;
            if answers.iter().any(|&answer| answer != 0) {
                return Err(BenchError::Invalid("not every claim got a slot".to_owned()));
            }
        }
        Ok::<usize, BenchError>(users)
    });
    let claims: usize = futures::future::try_join_all(callers).await?.into_iter().sum();
    Ok(claims as f64 / began.elapsed().as_secs_f64())
}
