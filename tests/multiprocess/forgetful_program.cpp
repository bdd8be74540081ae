// A program of somebody's own that starts node processes and forgets that these are started with
// --join: each would start more of them. Every process of it writes a line to the file that
// TROUPE_CENSUS names; should nobody stop them, they stop at the tenth.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cluster/membership/node_group.hpp"

namespace {

using namespace troupe;

constexpr off_t most_processes = 10;

/// How many processes of this program there have been, this one included.
off_t count_oneself() {
  const int census = open(std::getenv("TROUPE_CENSUS"), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (census < 0 || write(census, "\n", 1) != 1) std::abort();
  struct stat about {};
  if (fstat(census, &about) != 0) std::abort();
  close(census);
  return about.st_size;
}

result<void> start() {
  auto link = cluster::process_link_of(cluster::link_config{});
  if (!link) return tl::unexpected(link.error());
  auto made = cluster::make_process_launcher(std::move(*link), /*verbose=*/false,
                                             /*processes=*/2);
  if (!made) return tl::unexpected(made.error());
  const std::shared_ptr<cluster::node_launcher> nodes = std::move(*made);
  const auto group = cluster::node_group::start(nodes, {"stage-0", "stage-1"}, "");
  return group ? result<void>() : tl::unexpected(group.error());
}

}  // namespace

int main() {
  if (count_oneself() > most_processes) return 3;
  const auto started = start();
  if (started) return 0;
  std::fprintf(stderr, "forgetful: %s\n", started.error().text.c_str());
  return 1;
}
