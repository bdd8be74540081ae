#include "apps/parameter_server/application.hpp"

int main(int argc, char** argv) {
  return troupe::main(argc, argv, troupe::apps::parameter_server_application());
}
