//! The registration cache in a program whose allocator is jemalloc.

mod churn;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// "No hidden cache, no patched allocator": what the cache does is right whatever the allocator
/// maps and unmaps, and neither waits for the other for ever.
#[test]
fn a_cache_works_with_this_allocator() {
    churn::registrations_beside_an_allocator();
}
