#include "cluster/launch/start/child_start.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

namespace troupe::cluster {

void give_up(int failure, bool is_of_folder) noexcept {
  const start_failure why{errno, is_of_folder};
  [[maybe_unused]] const auto sent = ::write(failure, &why, sizeof why);
  ::_exit(127);
}

void take_place(child_start& how) noexcept {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(how.failure);
  if (::getppid() != how.parent) ::_exit(127);  // it died before the line above took effect
  if (how.working_folder != nullptr && ::chdir(how.working_folder) != 0) give_up(how.failure, true);
  // Out of the way of what goes below it.
  const int failure = ::fcntl(how.failure, F_DUPFD_CLOEXEC, handed_over_as + 2);
  if (failure < 0) give_up(how.failure);
  how.failure = failure;
  if (::dup2(how.in, 0) < 0 || ::dup2(how.out, 1) < 0 || ::dup2(how.err, 2) < 0)
    give_up(how.failure);
  int first_closed = handed_over_as;
  if (how.handed_over >= 0) {
    if (how.handed_over != handed_over_as && ::dup2(how.handed_over, handed_over_as) < 0)
      give_up(how.failure);
    if (::fcntl(handed_over_as, F_SETFD, 0) != 0) give_up(how.failure);
    ++first_closed;
  }
  if (::dup3(how.failure, first_closed, O_CLOEXEC) < 0) give_up(how.failure);
  how.failure = first_closed;
}

}  // namespace troupe::cluster
