use model::{
    explore::explore,
    protocol::Protocol,
    scope::{self, Scope},
};

fn holds(scope: &Scope) {
    let explored = explore(Protocol::new(scope, None));
    assert!(explored.broken.is_none(), "{explored}");
    assert_eq!(explored.missed, Vec::<&str>::new(), "not come to in {}", scope.name);
}

macro_rules! scopes {
    ($($name:ident = $scope:ident,)*) => {
        $(#[test]
        fn $name() {
            holds(&scope::$scope);
        })*
    };
}

scopes! {
    claims = CLAIMS,
    crowd = CROWD,
    two_sweepers = TWO_SWEEPERS,
    two_workers = TWO_WORKERS,
    rebuild = REBUILD,
    two_rebuilders = TWO_REBUILDERS,
    cancel = CANCEL,
    raise = RAISE,
    shrink = SHRINK,
    two_writers = TWO_WRITERS,
    put_back = PUT_BACK,
}
