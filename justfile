fmt:
    cargo fmt

lint:
    cargo clippy --all-targets --all-features -- -D warnings

test:
    cargo test

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features

deep:
    .ci/deep

release:
    .ci/release

ci:
    .ci/run
