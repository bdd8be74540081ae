/// jemalloc's settings for a program that computes: keep every page once touched (decay off), treat
/// large tensors like small ones, and ask for huge pages. What is kept is reused for blocks of any
/// size (`lg_extent_max_active_fit`): by default a small one never gets a part of a free extent
/// that is more than 64 times as large, and takes fresh pages instead, without end when none are
/// given back. Linked into programs, not into a library.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf =
    "dirty_decay_ms:-1,muzzy_decay_ms:-1,lg_extent_max_active_fit:32,oversize_threshold:0,"
    "metadata_thp:auto,thp:always";
}
