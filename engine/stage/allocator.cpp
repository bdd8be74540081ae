/// jemalloc's settings for a program that computes: keep every page once touched (decay off), treat
/// large tensors like small ones, and ask for huge pages. Linked into programs, not into a library.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf =
    "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,metadata_thp:auto,thp:always";
}
