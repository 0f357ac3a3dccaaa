//! The description for machines, from the handlers themselves.

use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};

use super::{internal_routes, public_routes};

/// Both ports. `docs/openapi.json` is this, and a test compares the two.
pub fn openapi() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Coupon intake")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Claims coupons of first-come campaigns. Calls tagged `internal` are on the internal port only.",
        ))
        .build();
    let mut api = OpenApiBuilder::new().info(info).build();
    api.merge(public_routes().into_openapi());
    api.merge(internal_routes().into_openapi());
    api
}
