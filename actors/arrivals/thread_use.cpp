#include "actors/arrivals/thread_use.hpp"

#include <sys/resource.h>

#include <ctime>

namespace troupe::actors {

thread_use thread_use::now() {
  timespec computed{};  // not of getrusage, whose times may be as old as the last tick
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &computed);
  rusage all{};
  getrusage(RUSAGE_THREAD, &all);
  return {std::chrono::seconds(computed.tv_sec) + std::chrono::nanoseconds(computed.tv_nsec),
          all.ru_nvcsw};
}

}  // namespace troupe::actors
