#include "tests/fake_nccl/world.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace troupe::tests::fake_nccl {
namespace {

/// The hosts of a test have no /dev/shm in common, but may have a folder.
std::string path_of(const std::string& name) {
  const char* const folder = std::getenv("FAKE_NCCL_WORLDS");
  return (folder == nullptr ? "/dev/shm" : folder) + name;
}

}  // namespace

world::world(const engine::nccl::unique_id& id, int own, int all, int device)
    : rank(own), ranks(all), path_(path_of(id.bytes)) {
  pidfds_.fill(-1);
  const int file = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(shared_world)) != 0)
    throw std::runtime_error("no shared memory at " + path_);
  void* const mapped =
      ::mmap(nullptr, sizeof(shared_world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (mapped == MAP_FAILED) throw std::runtime_error("shared memory cannot be mapped");
  memory_ = static_cast<shared_world*>(mapped);  // zeros at first, as the atomics are to begin
  memory_->devices[static_cast<std::size_t>(rank)] = device + 1;
  memory_->processes[static_cast<std::size_t>(rank)] = ::getpid();
  if (++memory_->here == ranks) ::unlink(path_.c_str());
}

world::~world() {
  for (const int each : pidfds_)
    if (each >= 0) ::close(each);
  if (!complete()) ::unlink(path_.c_str());
  ::munmap(memory_, sizeof(shared_world));
}

int world::twin() const {
  const int mine = memory_->devices[static_cast<std::size_t>(rank)];
  for (int other = 0; other < ranks; ++other)
    if (other != rank && memory_->devices[static_cast<std::size_t>(other)] == mine) return other;
  return -1;
}

int world::dead() {
  for (int other = 0; other < ranks; ++other) {
    const pid_t process = memory_->processes[static_cast<std::size_t>(other)];
    if (other == rank || process == 0) continue;
    int& hold = pidfds_[static_cast<std::size_t>(other)];
    if (hold < 0) hold = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
    pollfd ended{.fd = hold, .events = POLLIN, .revents = 0};
    if (hold < 0 || ::poll(&ended, 1, 0) > 0) return other;
  }
  return -1;
}

}  // namespace troupe::tests::fake_nccl
